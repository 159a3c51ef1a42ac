"""A dated folder of all that was measured: commands, what they wrote, and a page that a program makes."""
