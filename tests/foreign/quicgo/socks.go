package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// Bytes before the payload of a datagram to or from an address of IPv4.
const head = 10

// An association sends and receives datagrams through a SOCKS5 proxy, for as long as its TCP connection lives. quic-go must not use its
// socket directly, so the socket is not embedded.
type association struct {
	control net.Conn
	socket  *net.UDPConn
}

func associate(proxy string) (*association, error) {
	control, err := net.Dial("tcp4", proxy)
	if err != nil {
		return nil, err
	}
	if _, err = control.Write([]byte{5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0}); err != nil {
		return nil, err
	}
	var answer [12]byte
	if _, err = io.ReadFull(control, answer[:]); err != nil {
		return nil, err
	}
	if answer[1] != 0 || answer[3] != 0 || answer[5] != 1 {
		return nil, fmt.Errorf("the proxy answers %v", answer)
	}
	relay := &net.UDPAddr{IP: answer[6:10], Port: int(binary.BigEndian.Uint16(answer[10:]))}
	socket, err := net.DialUDP("udp4", nil, relay)
	if err != nil {
		return nil, err
	}
	return &association{control, socket}, nil
}

func (a *association) WriteTo(payload []byte, to net.Addr) (int, error) {
	target := to.(*net.UDPAddr)
	datagram := append([]byte{0, 0, 0, 1}, target.IP.To4()...)
	datagram = binary.BigEndian.AppendUint16(datagram, uint16(target.Port))
	_, err := a.socket.Write(append(datagram, payload...))
	return len(payload), err
}

func (a *association) ReadFrom(payload []byte) (int, net.Addr, error) {
	datagram := make([]byte, head+len(payload))
	length, err := a.socket.Read(datagram)
	if err != nil {
		return 0, nil, err
	}
	if length < head || datagram[2] != 0 || datagram[3] != 1 {
		return 0, nil, fmt.Errorf("a malformed datagram of %d bytes", length)
	}
	from := &net.UDPAddr{IP: datagram[4:8], Port: int(binary.BigEndian.Uint16(datagram[8:]))}
	return copy(payload, datagram[head:length]), from, nil
}

func (a *association) Close() error {
	a.control.Close()
	return a.socket.Close()
}

func (a *association) LocalAddr() net.Addr                { return a.socket.LocalAddr() }
func (a *association) SetDeadline(t time.Time) error      { return a.socket.SetDeadline(t) }
func (a *association) SetReadDeadline(t time.Time) error  { return a.socket.SetReadDeadline(t) }
func (a *association) SetWriteDeadline(t time.Time) error { return a.socket.SetWriteDeadline(t) }
