"""What the host has put around the model: comments of a picture, and the words that it knows."""

from types import SimpleNamespace

from modules.textual_inversion.textual_inversion import EmbeddingDatabase

current_optimizer = None
model_hijack = SimpleNamespace(comments=[], embedding_db=EmbeddingDatabase())
