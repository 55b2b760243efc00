"""Training: the one place where models, data and records meet. Importing a module here imports torch and Lightning."""
