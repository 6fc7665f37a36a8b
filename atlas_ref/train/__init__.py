"""Training of models, and probes of what memories hold."""
