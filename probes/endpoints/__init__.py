"""Deployments that an operator has running already: asked over HTTP, and nothing is started or deleted."""
