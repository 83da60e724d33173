"""Run a recorded session's handlers again, or stand in for one of its sides."""
