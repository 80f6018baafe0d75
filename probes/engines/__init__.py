"""Deployments that are started for a rehearsal: a real vLLM, with real connectors in front of scratch stores."""
