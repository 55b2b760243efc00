"""Mean and standard deviation of each channel of a data set: the same as ``vitrine channel-statistics``; see --help."""

from vitrine.cli.channel_statistics import main

if __name__ == "__main__":
    main()
