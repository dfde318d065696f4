"""How sums over keys are computed, and by what; knows no mechanism."""
