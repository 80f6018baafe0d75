"""One request twice, with the cache and without: is it the cache that changes the answer?"""
