"""How many runs are made from one command. No torch here until a trial is carried out."""
