// Package instances knows what cloud instance types have.
package instances

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Builtin are the rows of the types that we know. Rows are those of instance-profiles.conf of AWS's GPU cluster health checks:
// type|gpus|nics|nvlink|fabric.
//
//go:embed instances.txt
var Builtin string

// Instance is what an instance type has.
type Instance struct {
	GPUs int
	// EFA is the number of EFA devices.
	EFA int
}

// Find returns the row of an instance type; found is false where there is none.
func Find(rows, name string) (i Instance, found bool, err error) {
	for line := range strings.Lines(rows) {
		line = strings.TrimSpace(line)
		fields := strings.Split(line, "|")
		if strings.HasPrefix(line, "#") || line == "" {
			continue
		}
		if len(fields) < 2 {
			return i, false, fmt.Errorf("profile %q is not type|gpus|nics|nvlink|fabric", line)
		}
		gpus, err := strconv.ParseUint(fields[1], 10, 16)
		if err != nil {
			return i, false, fmt.Errorf("profile %q has no number of GPUs", line)
		}
		row := Instance{GPUs: int(gpus)}
		if len(fields) == 5 && fields[4] == "efa" {
			nics, err := strconv.ParseUint(fields[2], 10, 16)
			if err != nil {
				return i, false, fmt.Errorf("profile %q has no number of EFA devices", line)
			}
			row.EFA = int(nics)
		}
		if fields[0] == name && !found {
			i, found = row, true
		}
	}
	return i, found, nil
}

// Product returns the product name in DMI, which is the type of EC2's Nitro instances, "" without DMI.
func Product(sysfs string) string {
	// A machine without DMI has no profile.
	data, _ := os.ReadFile(filepath.Join(sysfs, "class/dmi/id/product_name"))
	return strings.TrimSpace(string(data))
}
