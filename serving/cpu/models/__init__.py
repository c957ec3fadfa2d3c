"""The model classes that SGLang is told about: with these it starts without importing all of its own."""
