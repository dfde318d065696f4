"""Simultaneous translation: features, policies, segments and sessions, whatever the engine.

What a policy of one's own needs is here: `Policy`, `Option`, `register`, and the types of what it is given.
"""

from ...support.declared import Option
from . import own, policies
from .policy import Draft, Policy, PolicyOptions, Token, register

__all__ = ["Draft", "Option", "Policy", "PolicyOptions", "Token", "own", "policies", "register"]
