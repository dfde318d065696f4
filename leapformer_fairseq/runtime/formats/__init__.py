"""Logs of simultaneous translation: OmniSTEval's, simulstream's and ours."""
