"""What lets real SGLang serve small dense models on a machine without a GPU, for tests."""
