"""Reading a model file: weights, configuration, tokenizer, chat template; and the models themselves."""
