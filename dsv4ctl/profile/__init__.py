"""Profiles: what a stack is, as one TOML file a machine. docs/profiles.md describes the format."""
