package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
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

// moduleEvent is what mlx5_core says about a cable or optics, e.g. `mlx5_core 0000:5c:00.0: Port module event[error]:
// module 0, Cable error, High Temperature` (drivers/net/ethernet/mellanox/mlx5/core/events.c, port_module). Older
// drivers put their function's name in between.
var moduleEvent = regexp.MustCompile(`^mlx5_core ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): ` +
	`(?:mlx5_port_module_event:\d+:\(pid \d+\): )?Port module event(?:\[error\])?: module \d+, (.+)`)

// plugged is the event of a cable that is well.
const plugged = "Cable plugged"

// parseModuleEvent reads a record of the kernel log.
func parseModuleEvent(body string) (address, event string, ok bool) {
	m := moduleEvent.FindStringSubmatch(body)
	if m == nil || kmsg.StartsWithFile(body) {
		return "", "", false
	}
	return m[1], m[2][:min(len(m[2]), 80)], true
}
