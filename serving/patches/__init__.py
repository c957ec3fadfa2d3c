"""What is changed in the engine, one module a patch; `serving.patches.registry` decides which apply and applies them."""
