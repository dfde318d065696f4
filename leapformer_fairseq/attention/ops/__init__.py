"""How sums over keys are computed; nothing here knows a mechanism."""
