// Program etcd takes the flags of an etcd and runs Quoin with what they mean, so that etcd's own tests start it. What has no
// meaning for Quoin is named on standard error and passed over. The program quoin is beside it: etcd's tests pass no environment on.
package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// What etcd's tests wait for in the log of a member.
const ready = "ready to serve client requests"

// Flags without a value.
var switches = map[string]bool{"client-cert-auth": true, "auto-tls": true, "peer-auto-tls": true, "force-new-cluster": true}

// Settings that have only another name.
var renamed = map[string]string{
	"name": "name", "data-dir": "data-dir", "initial-cluster-token": "cluster-token",
	"max-request-bytes": "limits-request-bytes-max", "max-txn-ops": "limits-txn-operations-max",
	"cert-file": "tls-cert-file", "key-file": "tls-key-file", "trusted-ca-file": "tls-trusted-ca-file",
	"peer-cert-file": "tls-peer-cert-file", "peer-key-file": "tls-peer-key-file", "peer-trusted-ca-file": "tls-peer-trusted-ca-file",
}

// quoin is the program that is run.
func quoin() string {
	own, err := os.Executable()
	if err != nil {
		return "quoin"
	}
	return filepath.Join(filepath.Dir(own), "quoin")
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("etcd Version: 3.6.16\nGit SHA: Quoin")
		return
	}
	if len(os.Args) == 2 && strings.HasSuffix(os.Args[1], "help") {
		fmt.Println("--snapshot-catchup-entries")
		return
	}
	if err := run(parse(os.Args[1:])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parse(args []string) map[string]string {
	flags := map[string]string{}
	for at := 0; at < len(args); at++ {
		name, value, given := strings.Cut(strings.TrimLeft(args[at], "-"), "=")
		if !given && switches[name] {
			value = "true"
		} else if !given && at+1 < len(args) {
			at++
			value = args[at]
		}
		flags[name] = value
	}
	return flags
}

// address is the host and port of a URL, as an address to listen on or as one to be reached at.
func address(text string, listen bool) string {
	at, err := url.Parse(text)
	if err != nil {
		return text
	}
	if listen && at.Hostname() == "localhost" {
		return "127.0.0.1:" + at.Port()
	}
	return at.Host
}

func freePort() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func settings(flags map[string]string, pages string) []string {
	args := []string{"serve", "--listen-http", pages, "--listen-resp", freePort(), "--store-reserve-bytes=0"}
	peer := address(flags["listen-peer-urls"], true)
	args = append(args, "--listen-peer", peer, "--advertise-peer", address(flags["initial-advertise-peer-urls"], false))
	args = append(args, "--listen-client", address(strings.Split(flags["listen-client-urls"], ",")[0], true))
	args = append(args, "--advertise-client", flags["advertise-client-urls"])
	var members, others []string
	for _, member := range strings.Split(flags["initial-cluster"], ",") {
		name, at, _ := strings.Cut(member, "=")
		members = append(members, name+"="+address(at, false))
		if name != flags["name"] {
			others = append(others, address(at, false))
		}
	}
	if flags["initial-cluster-state"] == "existing" {
		args = append(args, "--join", strings.Join(others, ","))
	} else {
		args = append(args, "--cluster", strings.Join(members, ","))
	}
	for name, ours := range renamed {
		if value, given := flags[name]; given {
			args = append(args, "--"+ours, value)
		}
	}
	if flags["client-cert-auth"] == "true" {
		args = append(args, "--tls-client-auth", "required")
	}
	if flags["auto-tls"] == "true" {
		args = append(args, ownCertificates(flags["data-dir"])...)
	}
	// etcd compacts nothing by itself.
	if flags["auto-compaction-retention"] == "" || flags["auto-compaction-retention"] == "0" {
		args = append(args, "--history-auto-compaction=false")
	}
	if flags["strict-reconfig-check"] == "false" {
		args = append(args, "--raft-member-health-ms=0")
	}
	known := map[string]bool{"strict-reconfig-check": true, "initial-cluster": true, "initial-cluster-state": true, "listen-client-urls": true, "listen-peer-urls": true,
		"advertise-client-urls": true, "initial-advertise-peer-urls": true, "client-cert-auth": true, "auto-tls": true}
	for name, value := range flags {
		if _, ours := renamed[name]; !ours && !known[name] {
			fmt.Fprintf(os.Stderr, "passed over: --%s=%s\n", name, value)
		}
	}
	return args
}

// ownCertificates makes certificates for a member, beside its data.
func ownCertificates(data string) []string {
	folder := filepath.Clean(data) + ".certs"
	made := exec.Command(quoin(), "cert", "init", "--dir", folder, "--nodes", "n=localhost+127.0.0.1")
	if out, err := made.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", err, out)
	}
	return []string{"--tls-cert-file", folder + "/node-n.crt", "--tls-key-file", folder + "/node-n.key",
		"--tls-trusted-ca-file", folder + "/ca.crt"}
}

func run(flags map[string]string) error {
	pages := freePort()
	args := settings(flags, pages)
	fmt.Fprintln(os.Stderr, "quoin", strings.Join(args, " "))
	server := exec.Command(quoin(), args...)
	server.Stdout = os.Stdout
	log, err := server.StderrPipe()
	if err != nil {
		return err
	}
	// A wrapper that is killed takes the server with it.
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for signal := range signals {
			_ = server.Process.Signal(signal)
		}
	}()
	var over atomic.Bool
	go func() {
		for !over.Load() && !isReady(flags, pages) {
			time.Sleep(20 * time.Millisecond)
		}
		fmt.Fprintln(os.Stderr, ready)
	}()
	_, _ = io.Copy(os.Stderr, bufio.NewReader(log))
	over.Store(true)
	return server.Wait()
}

func isReady(flags map[string]string, pages string) bool {
	scheme, config := "http", &tls.Config{InsecureSkipVerify: true}
	if flags["cert-file"] != "" || flags["auto-tls"] == "true" {
		scheme = "https"
		if pair, err := tls.LoadX509KeyPair(flags["cert-file"], flags["key-file"]); err == nil {
			config.Certificates = []tls.Certificate{pair}
		}
	}
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	answer, err := client.Get(fmt.Sprintf("%s://%s/readyz", scheme, pages))
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}
