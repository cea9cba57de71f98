"""Deployable processes: replicas, configuration services, and the supervisor that runs them on one machine."""
