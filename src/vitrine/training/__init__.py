"""Training: where models, data and records meet. Importing a module here, but launched, imports torch and Lightning."""
