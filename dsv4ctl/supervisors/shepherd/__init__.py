"""The part of the `process` supervisor that runs on the host: it starts a worker, watches it, and knows its processes.

This package is put into one zip file, written to the host and run there by any Python from 3.8 on, so it imports the
standard library and itself, nothing else. One command a run: a JSON request on stdin (never argv, where others could
read a secret), a JSON reply on stdout. `start` leaves a process behind, the shepherd of one unit:

- It leads a session of its own, so a lost connection does not reach it, and it is the child subreaper of everything
  below it: a process that detaches (setsid, double fork) becomes its child again and is still known as the unit's.
- The worker writes to the log file itself, not through a pipe. When the shepherd is killed, the worker runs on.
- It keeps `units/NAME.json`: who it is, who the worker is, every process seen in the unit, and how the worker ended.

A process is its pid and start time, and a signal goes through a pidfd, so a reused pid is never signalled.
"""
