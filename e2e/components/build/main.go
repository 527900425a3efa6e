// Command build builds the real components that tests and demo run, all of them or those named, and after these the named
// programs of this repository.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: build [-arch ARCHITECTURE] [component...] [./program...]\n"+
			"It builds components into bin/components and programs of this repository, such as ./plugins/xid, into bin. The components:")
		for _, c := range components.All {
			fmt.Fprintf(flag.CommandLine.Output(), "  %-22s %s\n", c.Name, c.Module)
		}
	}
	arch := flag.String("arch", runtime.GOARCH, "`architecture` to build for; another one's binaries are in a folder of its name")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := build(ctx, *arch, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func build(ctx context.Context, arch string, names []string) error {
	wanted := slices.Clone(components.All)
	if len(names) > 0 {
		wanted = nil
	}
	var programs []string
	for _, name := range names {
		if strings.HasPrefix(name, "./") {
			programs = append(programs, name)
			continue
		}
		c, err := component(name)
		if err != nil {
			return err
		}
		wanted = append(wanted, c)
	}
	for i := range wanted {
		wanted[i] = wanted[i].For(arch)
	}
	root, err := components.Root()
	if err != nil {
		return err
	}
	if err := components.CheckRoom(ctx); err != nil {
		return err
	}
	return components.BuildWith(ctx, os.Stderr, root, wanted, programs)
}

func component(name string) (components.Component, error) {
	for _, c := range components.All {
		if c.Name == name {
			return c, nil
		}
	}
	return components.Component{}, fmt.Errorf("%q is not a component; -h lists them", name)
}
