"""The keyword spotter: LogMelSpectrogram and a small network that hears ten words."""
