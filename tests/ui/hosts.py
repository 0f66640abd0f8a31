"""A host for the tests of the pages: files in a folder, and a note of what it was asked."""

from lib_lora.host import CheckpointInfo, HostFlags, HostInfo


class FolderHost:
    """Implements what the pages ask of `lib_lora.host.Host`."""

    def __init__(self, folder, base, restricted=False):
        self.folder, self.base, self.restricted = folder, base, restricted
        self.differing, self.asked = (), []
        self.network_folder().mkdir(exist_ok=True)

    def info(self):
        return HostInfo("Test host", "1", self.folder, self.restricted)

    def flags(self):
        return HostFlags(device="cpu")

    def network_folder(self):
        return self.folder / "loras"

    def checkpoints(self):
        return (CheckpointInfo(self.base.stem, self.base),)

    def differing_layers(self):
        return self.differing

    def release_gpu(self):
        self.asked.append("release")

    def restore_gpu(self):
        self.asked.append("restore")

    def add_network(self, file):
        self.asked.append(file.name)

    def tell(self, sentence):
        self.asked.append(sentence)
