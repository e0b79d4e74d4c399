"""The rules, by what they are about: a function each, which finds where its rule is broken. Pure."""
