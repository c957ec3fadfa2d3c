"""What is changed in the engine, one module a patch; `serving.patches.registry` says which apply, and applies them."""
