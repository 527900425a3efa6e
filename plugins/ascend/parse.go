package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The formats are those of Huawei's npu-smi command reference and of the published source of npu-smi (github.com/verylucky01/driver, read
// 2026-11-27). Anything else is an error.

// noCard is what npu-smi prints, instead of a count of 0, where its driver has no card.
const noCard = "There is no NPU card on this server."

// noECC is what it prints where the device does not count errors of its memory.
const noECC = "This device does not support querying ecc"

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

// card is a card of the list, and how many chips it has.
type card struct{ ID, Chips int }

// parseList reads `npu-smi info -l`. There must be as many cards as it says. 310 and 310B count cards, others NPUs; 950 counts no chips.
func parseList(out string) ([]card, error) {
	if strings.Contains(out, noCard) {
		return []card{}, nil
	}
	v := values(out)
	totals := slices.Concat(v["Total Count"], v["Card Count"])
	if len(totals) != 1 {
		return nil, fmt.Errorf("no total count in %.80q", out)
	}
	total, err := strconv.Atoi(totals[0])
	if err != nil {
		return nil, fmt.Errorf("total count: %w", err)
	}
	if total != len(v["NPU ID"]) {
		return nil, fmt.Errorf("%d NPUs of a total count of %d", len(v["NPU ID"]), total)
	}
	cards := []card{}
	for i, text := range v["NPU ID"] {
		id, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("NPU id: %w", err)
		}
		c := card{ID: int(id), Chips: 1}
		if counts := v["Chip Count"]; len(counts) == total {
			chips, err := strconv.ParseUint(counts[i], 10, 16)
			if err != nil {
				return nil, fmt.Errorf("chip count: %w", err)
			}
			c.Chips = int(chips)
		}
		cards = append(cards, c)
	}
	return cards, nil
}

// columns separates the columns of a table. The name of a chip may have a blank ("Ascend 910B4").
var columns = regexp.MustCompile(`\s{2,}`)

// parseChips reads the ids by which hccn_tool knows the chips of every NPU from `npu-smi info -m`. The columns differ: 310P and 910B
// have four, A3 five, and 950 has a slot and no logic id. Chips that do not compute, like the MCU, have no id.
func parseChips(out string) (map[int][]int, error) {
	chips := map[int][]int{}
	npu, id := -1, -1
	for line := range strings.Lines(out) {
		row := columns.Split(strings.TrimSpace(line), -1)
		if row[0] == "NPU ID" {
			npu, id = 0, slices.Index(row, "Chip Logic ID")
			if id < 0 {
				id = slices.Index(row, "Chip Phy-ID")
			}
			continue
		}
		if npu < 0 || id < 0 || len(row) <= id || row[id] == "-" {
			continue
		}
		card, errNPU := strconv.ParseUint(row[npu], 10, 16)
		chip, errID := strconv.ParseUint(row[id], 10, 16)
		if errNPU != nil || errID != nil {
			return nil, fmt.Errorf("row %.80q", line)
		}
		chips[int(card)] = append(chips[int(card)], int(chip))
	}
	if len(chips) == 0 {
		return nil, fmt.Errorf("no chip in %.80q", out)
	}
	return chips, nil
}

// chip is the health of one chip of a card.
type chip struct {
	// ID is the chip's number on a card with several.
	ID     string `json:"id,omitempty"`
	Health string `json:"health"`
	Code   string `json:"code,omitempty"`
}

// mcu and only are the ids of the management controller and of the chip of a card that has one.
const (
	mcu  = "MCU"
	only = "only"
)

// parseHealth reads the health of every chip from `npu-smi info -t health -i N`: each chip's, then its number, and at last the MCU's,
// then its name. It returns those that it understands beside an error. The key was Health Status in older versions.
func parseHealth(out string) (chips []chip, err error) {
	count := 1
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key = strings.TrimSpace(key); {
		case key == "Chip Count":
			if count, err = strconv.Atoi(value); err != nil {
				return nil, fmt.Errorf("chip count: %w", err)
			}
		case key == "Health" || key == "Health Status":
			chips = append(chips, chip{Health: value})
		case len(chips) > 0:
			chips[len(chips)-1].set(key, value, count)
		}
	}
	read := 0
	for _, c := range chips {
		if c.ID != mcu {
			read++
		}
	}
	switch {
	case read == 0:
		return chips, fmt.Errorf("no health in %.80q", out)
	case read != count:
		return chips, fmt.Errorf("the health of only %d of %d chips", read, count)
	}
	return chips, nil
}

// set takes a line that follows the chip's health, on a card with so many chips. The first id counts.
func (c *chip) set(key, value string, chips int) {
	switch {
	case key == "Error Code" && value != "NA":
		c.Code = value
	case c.ID != "":
	case key == "Chip ID" && chips == 1:
		c.ID = only
	case key == "Chip ID":
		c.ID = value
	case key == "Chip Name" && strings.EqualFold(value, mcu):
		c.ID = mcu
	}
}

// parsePages reads the isolated HBM pages from `npu-smi info -t ecc -i N`, those of the worst chip. An NPU without HBM counts DDR alone.
// 310 and a system on a chip isolate no pages.
func parsePages(out string) (worst uint64, err error) {
	if strings.Contains(out, noECC) {
		return 0, nil
	}
	v := values(out)
	found := v["HBM Double Bit Isolated Pages Count"]
	if len(found) == 0 {
		found = v["DDR Double Bit Isolated Pages Count"]
	}
	if counted := len(v["Double-bit Error Count"]) + len(v["DDR Double Bit Error Count"]); len(found) == 0 && counted == 0 {
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
