"""Simultaneous translation: features, policies, segments and sessions, whatever the engine."""
