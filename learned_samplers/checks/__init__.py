"""Does a sampler leave the law that it should leave?"""
