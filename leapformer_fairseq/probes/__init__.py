"""Small tasks that show in minutes what a mechanism can remember, before it is trained for hours."""
