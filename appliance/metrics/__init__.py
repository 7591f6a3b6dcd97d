"""What the processes count and how they are, for people and monitors; nothing here is on the data path."""
