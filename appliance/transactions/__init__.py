"""Transactions (KIP-98): the rules of a transactional id, who coordinates it, and the APIs of its producer."""
