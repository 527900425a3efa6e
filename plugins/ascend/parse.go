package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The formats are those of Huawei's npu-smi command reference and of the log collection example of Ascend's
// documentation, read 2026-11-20. Anything else is an error.

// values reads `key : value` lines. A key that comes again, once per chip, has several values.
func values(out string) map[string][]string {
	all := map[string][]string{}
	for line := range strings.Lines(out) {
		if key, value, found := strings.Cut(line, ":"); found {
			key = strings.TrimSpace(key)
			all[key] = append(all[key], strings.TrimSpace(value))
		}
	}
	return all
}

// parseList reads the NPU ids from `npu-smi info -l`. There must be as many as it says.
func parseList(out string) ([]int, error) {
	v := values(out)
	if len(v["Total Count"]) != 1 {
		return nil, fmt.Errorf("no total count in %.80q", out)
	}
	total, err := strconv.Atoi(v["Total Count"][0])
	if err != nil {
		return nil, fmt.Errorf("total count: %w", err)
	}
	if total != len(v["NPU ID"]) {
		return nil, fmt.Errorf("%d NPUs of a total count of %d", len(v["NPU ID"]), total)
	}
	ids := []int{}
	for _, text := range v["NPU ID"] {
		id, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("NPU id: %w", err)
		}
		ids = append(ids, int(id))
	}
	return ids, nil
}

// chipLine is a row of `npu-smi info -m`: NPU id, chip id, logic id, name. Other chips, like the MCU, have no logic id.
var chipLine = regexp.MustCompile(`^\s*(\d+)\s+(\d+)\s+(\d+)\s+Ascend\s*\S*\s*$`)

// parseChips reads the logic ids of the chips of every NPU from `npu-smi info -m`.
func parseChips(out string) (map[int][]int, error) {
	chips := map[int][]int{}
	for line := range strings.Lines(out) {
		m := chipLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		npu, errNPU := strconv.Atoi(m[1])
		logic, errLogic := strconv.Atoi(m[3])
		if errNPU != nil || errLogic != nil {
			return nil, fmt.Errorf("row %.80q", line)
		}
		chips[npu] = append(chips[npu], logic)
	}
	if len(chips) == 0 {
		return nil, fmt.Errorf("no chip in %.80q", out)
	}
	return chips, nil
}

// parseHealth reads the health and the error code from `npu-smi info -t health -i N`. With one chip the key is
// Health, with -c Health Status.
func parseHealth(out string) (health, code string, err error) {
	v := values(out)
	found := slices.Concat(v["Health"], v["Health Status"])
	if len(found) != 1 {
		return "", "", fmt.Errorf("no health in %.80q", out)
	}
	switch found[0] {
	case "OK", "Warning", "Alarm", "Critical", "UNKNOWN":
	default:
		return "", "", fmt.Errorf("health is %.40q", found[0])
	}
	if codes := v["Error Code"]; len(codes) == 1 && codes[0] != "NA" {
		code = codes[0]
	}
	return found[0], code, nil
}

// parsePages reads the isolated HBM pages from `npu-smi info -t ecc -i N`, those of the worst chip. An NPU without HBM
// counts DDR alone.
func parsePages(out string) (worst uint64, err error) {
	v := values(out)
	found := v["HBM Double Bit Isolated Pages Count"]
	if len(found) == 0 {
		found = v["DDR Double Bit Isolated Pages Count"]
	}
	if len(found) == 0 {
		return 0, fmt.Errorf("no isolated pages in %.80q", out)
	}
	for _, text := range found {
		pages, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("isolated pages: %w", err)
		}
		worst = max(worst, pages)
	}
	return worst, nil
}

// parseLink reads `hccn_tool -i N -link -g`, "link status: UP".
func parseLink(out string) (string, error) {
	link := values(out)["link status"]
	if len(link) != 1 || link[0] != "UP" && link[0] != "DOWN" {
		return "", fmt.Errorf("no link status in %.80q", out)
	}
	return link[0], nil
}
