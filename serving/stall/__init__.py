"""How long the scheduler of an engine has not moved, and what becomes of the requests that wait for it."""
