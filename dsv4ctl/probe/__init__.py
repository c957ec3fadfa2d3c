"""Asks every hop of a request's path the same questions, and says which hop fails and how."""
