"""Words that stand for vectors."""

from types import SimpleNamespace


def create_embedding_from_data(data, name, filename="unknown embedding file"):
    (vectors,) = data["string_to_param"].values() if "string_to_param" in data else data.values()
    return SimpleNamespace(name=name, vec=vectors, shape=vectors.shape[-1], filename=filename)


class EmbeddingDatabase:
    def __init__(self):
        self.word_embeddings, self.skipped_embeddings, self.expected_shape = {}, {}, -1

    def register_embedding(self, embedding, model):
        self.register_embedding_by_name(embedding, model, embedding.name)

    def register_embedding_by_name(self, embedding, model, name):
        self.word_embeddings.pop(name, None)
        if embedding is not None:
            self.word_embeddings[name] = embedding
