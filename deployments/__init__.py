"""The room that captures: checkpoint folders, hub repositories and launch lines become manifests."""
