"""Profiles: what a stack is, as one TOML file a machine. docs/profiles.md describes the format."""

from dsv4ctl.profile.keys import Origin, Problem, ProfileError, Valued
from dsv4ctl.profile.loading import LoadedProfile, env_text, flags, load_profile
from dsv4ctl.profile.lookup import available, find_profile
from dsv4ctl.profile.schema import GENERATED, LOCAL, ROUTER, NamedWorker, Profile, Role, Router, Worker

__all__ = [
    "GENERATED",
    "LOCAL",
    "ROUTER",
    "LoadedProfile",
    "NamedWorker",
    "Origin",
    "Problem",
    "Profile",
    "ProfileError",
    "Role",
    "Router",
    "Valued",
    "Worker",
    "available",
    "env_text",
    "find_profile",
    "flags",
    "load_profile",
]
