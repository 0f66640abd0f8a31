"""Conditionings; those of this host are the same at every step."""


class SdConditioning(list):
    def __init__(self, prompts, is_negative_prompt=False):
        super().__init__(prompts)
        self.is_negative_prompt = is_negative_prompt


def reconstruct_cond_batch(cond, current_step):
    return cond


def reconstruct_multicond_batch(cond, current_step):
    return [[(index, 1.0)] for index in range(len(cond))], cond
