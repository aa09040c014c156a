"""The live page: reads run folders as they grow and streams what is new to browsers."""
