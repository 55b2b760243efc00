"""Training: the one place where models, data and records meet. A module here imports torch and Lightning; launched not."""
