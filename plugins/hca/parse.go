package main

import (
	"fmt"
	"strconv"
	"strings"
)

// The words of drivers/infiniband/core/sysfs.c, state_show and phys_state_show.
var words = []string{
	"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER",
	"Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "Phy Test",
}

// parseWord reads the content of state or phys_state, "4: ACTIVE".
func parseWord(text string) (string, error) {
	number, word, found := strings.Cut(text, ": ")
	if _, err := strconv.ParseUint(number, 10, 8); !found || err != nil {
		return "", fmt.Errorf("%.40q is not `<number>: <word>`", text)
	}
	for _, known := range words {
		if word == known {
			return word, nil
		}
	}
	return "", fmt.Errorf("unknown word %.40q", word)
}

// parseRate reads the content of rate, "400 Gb/sec (4X NDR)", and returns Gb/s.
func parseRate(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, " ")
	rate, err := strconv.ParseFloat(number, 64)
	if err != nil || !(rate >= 0 && rate <= 1e6) || !strings.HasPrefix(unit, "Gb/sec") {
		return 0, fmt.Errorf("%.40q is not `<number> Gb/sec`", text)
	}
	return rate, nil
}
