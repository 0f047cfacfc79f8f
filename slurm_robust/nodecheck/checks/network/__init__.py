"""Does this node reach its peers, its controller and its storage at full speed?"""
