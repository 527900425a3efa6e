package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// npdRun is the line that NPD logs at -v=2 about each run of a plugin that did not exit with 0
// (node-problem-detector pkg/custompluginmonitor/plugin, runRules). End is when NPD had the plugin's exit status.
var npdRun = regexp.MustCompile(` Rule: .*\. End time: (.+?) m=\+[0-9.]+\. Duration: `)

// pluginExit finds the first run in NPD's log whose result names the subject, and returns when NPD had its exit status.
// NPD's clock is this machine's.
func pluginExit(log, subject string) (time.Time, error) {
	var run string
	for line := range strings.Lines(log) {
		if match := npdRun.FindStringSubmatch(line); match != nil {
			run = match[1]
		}
		if run == "" || !strings.Contains(line, "Add check result") || !strings.Contains(line, subject) {
			continue
		}
		end, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", run)
		if err != nil {
			return time.Time{}, fmt.Errorf("NPD's log: %w", err)
		}
		return end, nil
	}
	return time.Time{}, fmt.Errorf("NPD's log has no run that reports %s", subject)
}
