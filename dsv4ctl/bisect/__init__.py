"""Which settings of an environment bring a symptom: a search that says how sure it is. Values in, values out."""
