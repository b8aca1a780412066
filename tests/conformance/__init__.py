"""What the originals do, case by case, as tables; each names the test or the function of the original it is from."""
