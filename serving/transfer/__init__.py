"""Keeps what all transfers of an engine hang on: the status of each room, and the threads that no request can spare."""
