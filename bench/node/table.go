package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// published are GPUd's figures of an earlier run: 600 s on this kind of machine, with the same stand-in and eight GPUs, side by side
// with Pitcrew, whose checks took 0.61 % of a core then.
const published = "0.146"

// table prints the variants side by side.
func table(all []*variant) (lines []string) {
	header, rule := "| |", "|---|"
	programs := map[string]bool{}
	for _, v := range all {
		header += fmt.Sprintf(" %s: CPU a minute | starts a minute |", v.name)
		rule += "--:|--:|"
		for program := range v.cpu {
			programs[program] = true
		}
	}
	lines = append(lines, header, rule)
	row := func(name string, cells func(*variant) (string, string)) {
		line := "| " + name + " |"
		for _, v := range all {
			a, b := cells(v)
			line += fmt.Sprintf(" %s | %s |", a, b)
		}
		lines = append(lines, line)
	}
	for _, program := range slices.Sorted(maps.Keys(programs)) {
		row("`"+program+"`", func(v *variant) (string, string) {
			if _, runs := v.cpu[program]; !runs {
				return "", ""
			}
			starts := ""
			if slices.Contains(v.plugins, program) {
				starts = v.perMinute(v.starts[program])
			}
			return ms(v.minute(v.cpu[program])), starts
		})
	}
	row("all", func(v *variant) (string, string) {
		starts := 0
		for _, plugin := range v.plugins {
			starts += v.starts[plugin]
		}
		return ms(v.minute(v.total())), v.perMinute(starts)
	})
	single := func(name string, cell func(*variant) string) {
		row(name, func(v *variant) (string, string) { return cell(v), "" })
	}
	single("share of a core", func(v *variant) string { return fmt.Sprintf("%.3f %%", 100*v.total().Seconds()/v.length.Seconds()) })
	single("initialisations of NVML a minute", func(v *variant) string { return v.perMinute(v.starts[filepath.Base(v.inits)]) })
	single("memory (PSS), median", func(v *variant) string {
		return fmt.Sprintf("%.1f MiB", float64(slices.Sorted(slices.Values(v.pss))[len(v.pss)/2])/(1<<20))
	})
	if !slices.ContainsFunc(all, func(v *variant) bool { return v.name == "GPUd" }) {
		lines = append(lines, "", strings.Join([]string{"GPUd was not at hand. In an earlier run of 600 s with the same stand-in and -reread:", published, "% of a core, 78 MiB."}, " "))
	}
	return lines
}

func (v *variant) total() (sum time.Duration) {
	for _, d := range v.cpu {
		sum += d
	}
	return sum
}

func (v *variant) minute(d time.Duration) time.Duration {
	return time.Duration(float64(d) * float64(time.Minute) / float64(v.length))
}

func (v *variant) perMinute(n int) string { return fmt.Sprintf("%.1f", float64(n)/v.length.Minutes()) }

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) }
